"""The backend cases of ONNX's `Attention`."""
