"""Time a method by part: its instructions, sorted into parts that are timed apart."""
