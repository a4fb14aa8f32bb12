"""Machine: device, precision, threads, memory and speed."""
