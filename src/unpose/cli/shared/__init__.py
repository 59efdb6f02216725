"""What several commands share.

- ``options.py``: options and parameter types
- ``inputs.py``: images, data sets, networks and devices that a command line names
- ``output.py``: what a command prints and writes, without replacing files unasked
- ``progress.py``: the progress bar
- ``angle_sweep.py``, ``class_report.py``: accuracy by rotation angle, and by class
- ``any_model.py``, ``audited_images.py``: the models and the images of an audit
- ``audit_output.py``, ``junit.py``, ``train_output.py``: what these commands print, write and draw
- ``auto_group.py``: the group that ``--group auto`` finds
- ``unlabelled_run.py``: encoders that are learnt without labels
- ``site.py``: where the pages of the documentation are
- ``errors.py``: errors as one line and an exit status
"""
