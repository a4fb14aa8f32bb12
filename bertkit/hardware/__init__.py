"""What the machine can do: device, precision and speed."""
