"""Where the time of a method goes: its instructions, sorted into parts that are timed apart."""
