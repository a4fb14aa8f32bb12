"""Students: made of layers of their teachers, and compared with the inside of their teachers."""
