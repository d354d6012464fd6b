"""Worker processes: they run the ranks of a cell, on this machine or on others.

The runner controls them by messages, and ends them together with all processes that they have started. Who
starts whom:

    runner            `longca.lab.bench.run.runner`: one process; it never imports torch
      |
    Pool              pool.py: a few groups at a time, by kernel and by number of ranks
      |
    Group             group.py: all ranks of one group; asks them together and collects their answers
      |
      +-- Local       local.py: the launcher of one machine
      |     |
      |     +-- worker            worker.py: one process for each rank; its Session (session.py) holds the device
      |
      +-- Job         job.py: the launcher where torchrun or srun has started one task for each rank
            |
            +-- worker            rank 0: a child of the runner's own task
            |
            +-- agent             agent.py: each other task of the job (remote.py is the runner's side of it)
                  |
                  +-- worker      the rank of that task

Messages are JSON lines over a Channel (channel.py):

    runner <--> worker    two pipes on this machine, else a socket. First "found" or "refused". Then "claim" takes
                          the lock of its device, "release" gives it back, and "open" is answered by "ready".
                          Then each "measure" is answered by a "result", each "ping" by "healthy"; "exit" ends
                          it
    runner <--> agent     a socket. "start", "begin", "stack", "tail", "cause", "whereabouts", "kill", "stop", "leave"

A worker uses its device only while it, or another worker of the same run and machine, holds the device's lock
(device_lock.py).

`judge.py` is the process that judges results. `rendezvous.py` is how tasks find the runner. `launch.py` has
the interfaces of launchers and ranks. `process.py` is a worker process as its parent sees it.
"""  # noqa: E501
