"""Parts of the public face of context parallelism: the process group, the checked request, plans of masks,
and the autograd function."""
