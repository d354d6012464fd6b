"""Worker processes: they run the ranks of a cell, on this machine or on others.

The runner drives them by messages and ends them with everything they have started. Who starts whom:

    runner            `longca.bench.run.runner`: one process; it never imports torch
      |
    Pool              pool.py: a few groups at a time, one for each kernel and each number of ranks
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
            +-- AgentLink ))) agent.py    one in each other task, which srun or torchrun started; remote.py is the runner's side
                                |
                                +-- worker      a rank from 1 on

    runner ))) worker   one Channel (channel.py) for each rank, over two pipes here or over a socket elsewhere:
                        {"do": "measure" | "ping" | "exit"} -> {"ready"} | {"refused"} | {"result"} | {"healthy"}
    runner ))) agent    one Channel over a socket: {"do": "start" | "begin" | "stack" | "tail" | "kill" | "stop" | "leave" ...}

`task.py` finds out which task of a job this process is. `rendezvous.py` is how tasks find the runner. `launch.py` has the interfaces of
launchers and ranks. `process.py` is a worker process as its parent sees it.
"""
