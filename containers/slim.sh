#!/bin/sh
# What nobody runs in an image: pip, tests and headers of libraries, other people's compiled files. With `control` also
# what transformers has of models beyond their tokenizers and configurations: without torch it cannot be imported.
set -e
site=/opt/aegaeon/lib/python3.11/site-packages
rm -rf $site/pip $site/pip-* /opt/aegaeon/bin/pip* /opt/aegaeon/include $site/numpy/f2py $site/numpy/_core/include
find $site -type d \( -name tests -o -name __pycache__ \) -not -path '*/torch/*' -prune -exec rm -rf {} +
find $site -name '*.pyi' -delete
[ "$1" = control ] || exit 0
for kind in modeling modular image_processing processing video_processing feature_extraction convert generation; do
  find $site/transformers/models -type f -name "${kind}_*" -not -path '*/auto/*' -delete
done
