"""Pages to look at in a browser: one file each, without scripts and without a request to anywhere."""
