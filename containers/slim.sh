#!/bin/sh
# What nobody runs in an image goes: pip, tests and headers of libraries. With `control` also what transformers has of
# models beyond tokenizers and configurations, which cannot be imported without torch. The rest is compiled, so that
# Python need not do it at every start; hashes instead of times make the files the same in every build.
set -e
site=/opt/aegaeon/lib/python3.11/site-packages
rm -rf $site/pip $site/pip-* /opt/aegaeon/bin/pip* /opt/aegaeon/include $site/numpy/f2py $site/numpy/_core/include
find $site -type d \( -name tests -o -name __pycache__ \) -not -path '*/torch/*' -prune -exec rm -rf {} +
find $site -name '*.pyi' -delete
if [ "$1" = control ]; then
  rm -rf $site/hf_xet  # for files of gigabytes; without it the hub's client uses HTTP
  for kind in modeling modular image_processing processing video_processing feature_extraction convert generation; do
    find $site/transformers/models -type f -name "${kind}_*" -not -path '*/auto/*' -delete
  done
fi
find $site \( -name 'tokenizers*.so' -o -name '_rust*.so' -o -name '_http_*.so' \) -exec strip --strip-unneeded {} +
python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(transformers/models|pygments/lexers)/' $site
