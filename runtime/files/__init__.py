"""Files: read without trust, written so that they last, kept where nobody else may write."""
