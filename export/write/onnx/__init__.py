"""``--format onnx``: a checkpoint as graphs for onnxruntime, over its fused operators."""
