"""Attention under FlashMask's column form, in Triton."""
