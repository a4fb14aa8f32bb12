"""Which encoder to fine-tune: scores of frozen vectors against labels, how sure their order is, and what each costs."""
