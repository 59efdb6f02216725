"""What several commands share.

- ``options.py``: options and parameter types
- ``inputs.py``: images, data sets, networks and devices that a command line names
- ``output.py``: what a command prints and writes, without replacing files unasked
- ``progress.py``: the progress bar
- ``angle_sweep.py``: accuracy as a function of the rotation angle
- ``audit_output.py``, ``train_output.py``: what these two commands print and draw
- ``site.py``: where the pages of the documentation are
- ``errors.py``: errors as one line and an exit status
"""
