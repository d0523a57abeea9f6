"""Generation, plain and speculative: sampling, acceptance, block lengths, the drafter's protocol."""
