"""What each layer of an encoder knows: linear probes, what they are compared with, and how layers are weighed."""
