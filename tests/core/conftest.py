from tests.toy_plugins import plugins  # noqa: F401
