"""The exported program as modules: a model and its state, the methods over them, and the same run eagerly."""
