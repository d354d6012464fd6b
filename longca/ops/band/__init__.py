"""Band attention: exact attention for any list of bands and any block-sparse mask, forward and backward."""
