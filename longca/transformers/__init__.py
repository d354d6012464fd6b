"""Models of Hugging Face Transformers with attention of longca, on one device or over many ranks.

    import longca.transformers                                            # registers "longca"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="longca")
    sharding = longca.transformers.shard(model, group)                    # a sequence over the ranks of a group

The import registers longca in the public registries of Transformers, where that library is installed.
"""  # noqa: E501

import importlib.util

from longca.transformers.registration import register
from longca.transformers.sharding import ShardedModel, shard

__all__ = ["ShardedModel", "register", "shard"]

if importlib.util.find_spec("transformers") is not None:
    register()
