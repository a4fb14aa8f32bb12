"""What the machine can do: device, precision, memory, speed."""
