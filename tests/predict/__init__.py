"""Tests of `longca.predict`."""
