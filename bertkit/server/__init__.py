"""An HTTP server of trained models: an ASGI app whose event loop never computes."""
