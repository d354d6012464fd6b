"""What the peers' strategies and the study's own need beside the strategy contract."""
