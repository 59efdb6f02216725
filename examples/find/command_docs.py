"""
unpose docs: the documentation on this computer
===============================================

The pages come with the package. ``unpose docs`` prints the address of the first one and opens it in a browser, without
a network; ``unpose docs audit`` opens the page of a command, ``unpose docs howto/train`` any page by its name. A
browser is opened, so this example is not run when the site is built; the picture is recorded.

.. image:: /pictures/command-docs.png
   :alt: The first page: images at unknown poses beside the groups found, and four cards, find, learn, adapt and audit
"""

from unpose.cli import main

main("docs audit".split(), standalone_mode=False)

# sphinx_gallery_thumbnail_path = 'pictures/command-docs.png'
