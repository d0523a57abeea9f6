"""Sessions that come and go, many at once, in threads and in children."""
