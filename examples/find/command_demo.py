"""
unpose demo: a first look
=========================

Three hundred handwritten digits at random poses, grouped without labels, ending in a page: the first command to try. It
takes about a minute, so this example is not run when the site is built; the picture is a recorded page.

.. image:: /pictures/report.png
   :alt: The page: groups of handwritten digits, each with its average

The command writes the digits to ``demo/digits`` and runs ``unpose cluster`` on them.
"""

from unpose.cli import main

main("demo -o demo".split(), standalone_mode=False)

# sphinx_gallery_thumbnail_path = 'pictures/report.png'
