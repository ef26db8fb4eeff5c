#!/bin/sh
# Remove what no process of an image runs: pip, tests and headers of libraries. With `control` also what transformers has of
# models beyond tokenizers and configurations, which cannot be imported without torch; with `cpu` also what the build of
# torch in the package index opens when it computes on a GPU, and what it is not linked with. The rest is compiled, so that
# Python need not do it at every start; hashes instead of times make the files the same in every build.
set -e
site=/opt/aegaeon/lib/python3.11/site-packages
rm -rf $site/pip $site/pip-* /opt/aegaeon/bin/pip* /opt/aegaeon/bin/__pycache__ /opt/aegaeon/include $site/numpy/f2py $site/numpy/_core/include
find $site -type d \( -name tests -o -name __pycache__ \) -not -path '*/torch/*' -prune -exec rm -rf {} +
find $site -name '*.pyi' -delete
for data in $site/botocore/data/*/; do [ "${data%/s3/}" != "$data" ] || rm -rf "$data"; done  # of AWS, S3 alone
if [ "$1" = control ]; then
  rm -rf $site/hf_xet  # for files of gigabytes; without it the hub's client uses HTTP
  for kind in modeling modular image_processing processing video_processing feature_extraction convert generation; do
    find $site/transformers/models -type f -name "${kind}_*" -not -path '*/auto/*' -delete
  done
  # Of Envoy's two thousand messages the picker speaks a few; what those do not import goes.
  PYTHONDONTWRITEBYTECODE=1 /opt/aegaeon/bin/python3 - <<'END'
import sys
from importlib.metadata import files
from envoy.service.ext_proc.v3 import external_processor_pb2 as imported
used = {getattr(module, "__file__", None) for module in sys.modules.values()}
for file in files("xds-protos"):
    if file.suffix == ".py" and str(file.locate()) not in used:
        file.locate().unlink()
END
fi
if [ "$1" = cpu ]; then
  rm -rf $site/triton $site/triton-* $site/nvidia/cudnn/lib/libcudnn_* $site/nvidia/*/include
  rm -f $site/nvidia/cu13/lib/libcusolverMg.* $site/nvidia/cu13/lib/libnvrtc*alt.* $site/nvidia/cu13/lib/libnvperf_*
fi
find $site \( -name 'tokenizers*.so' -o -name '_rust*.so' -o -name '_http_*.so' -o -path '*/uvloop/loop*.so' \) -exec strip --strip-unneeded {} +
python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(transformers/models|pygments/lexers|torch/testing)/' $site
