"""Tests of `longca.advise`."""
