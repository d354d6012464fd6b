"""The GPU that these tests use."""

import pytest
import torch

GPU = torch.device("cuda", 0)
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
