"""Parts of the peers' strategies and of the study's own that are not in the strategy contract."""
