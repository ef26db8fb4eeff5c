#!/bin/sh
# Remove what no process of an image runs: pip, tests and headers of libraries. With `control` also what transformers has of
# models beyond tokenizers and configurations, which cannot be imported without torch; with `cpu` also what the build of
# torch in the package index opens when it computes on a GPU, and what it is not linked with. The rest is compiled, so that
# Python need not do it at every start; hashes instead of times make the files the same in every build.
#
# slim.sh [control|cpu] [ENVIRONMENT]
set -e
environment=${2:-/opt/aegaeon}
site=$environment/lib/python3.11/site-packages
rm -rf $site/pip $site/pip-* $environment/bin/pip* $environment/bin/__pycache__ $environment/include $site/numpy/f2py $site/numpy/_core/include
find $site -type d \( -name tests -o -name __pycache__ \) -not -path '*/torch/*' -prune -exec rm -rf {} +
find $site -name '*.pyi' -delete
for data in $site/botocore/data/*/; do [ "${data%/s3/}" != "$data" ] || rm -rf "$data"; done  # of AWS, S3 alone
if [ "$1" = control ]; then
  rm -rf $site/hf_xet  # for files of gigabytes; without it the hub's client uses HTTP
  for kind in modeling modular image_processing processing video_processing feature_extraction convert generation; do
    find $site/transformers/models -type f -name "${kind}_*" -not -path '*/auto/*' -delete
  done
fi
if [ "$1" = cpu ]; then
  rm -rf $site/triton $site/triton-* $site/nvidia/cudnn/lib/libcudnn_* $site/nvidia/*/include
  rm -f $site/nvidia/cu13/lib/libcusolverMg.* $site/nvidia/cu13/lib/libnvrtc*alt.* $site/nvidia/cu13/lib/libnvperf_*
fi
# A new file each: the old one may be an installer's cache, too, by a hard link.
find $site \( -name 'tokenizers*.so' -o -name '_rust*.so' -o -name '_http_*.so' -o -path '*/uvloop/loop*.so' \) \
  -exec strip --strip-unneeded -o {}.stripped {} \; -exec mv {}.stripped {} \;
python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(transformers/models|pygments/lexers|torch/testing)/' $site
