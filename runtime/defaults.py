"""Default values, which import no torch because the command line shows them in its help."""

DEFAULT_BYTES = 512 << 20
"""Bytes of a prefix cache."""
DEFAULT_PROGRAMS = 55
"""Random programs of a validation."""
LONG_TEXT = 4096
"""Tokens at which a decode of LFM2-350M reads 100 MB of float32 keys and values beside 200 MB of weights of 4 bits."""
