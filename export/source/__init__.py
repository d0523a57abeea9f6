"""What a user names as a checkpoint: found, recognized, or refused with what it is and what to do."""
