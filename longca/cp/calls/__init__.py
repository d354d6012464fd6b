"""The parts of a context (`longca.cp.context`): the ranks of a group, a checked request, plans of masks,
agreement of the ranks on their calls, and gradients."""
