"""Models as graphs that ONNX Runtime and OpenVINO run."""
