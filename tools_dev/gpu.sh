#!/usr/bin/env bash
# Everything that needs a GPU, in at most ten minutes: `tools_dev/gpu.sh OUT`. Raw output goes to the folder OUT, the table
# comes last. Tests first, since a wrong kernel makes its speed worthless.
set -u
out=${1:?a folder for the raw output}
mkdir -p "$out"
export PYTHONPATH=src:. OMP_NUM_THREADS=1
unset TRITON_INTERPRET
run() { # name, seconds, command
  local name=$1 seconds=$2
  shift 2
  timeout "$seconds" "$@" >"$out/$name.txt" 2>&1
  echo "$name: exit $? ($(tail -n 1 "$out/$name.txt"))" | tee -a "$out/summary.txt"
}
python -c 'import torch, triton, numpy, sys; print(sys.version, torch.__version__, triton.__version__, numpy.__version__)' |
  tee "$out/versions.txt"
pytest=(python -m pytest -q -p no:benchmark -p no:cacheprovider --timeout 300)
run kernels 150 "${pytest[@]}" -m triton tests/store/gpu tests/models/kernels
run rows 60 "${pytest[@]}" -m gpu tests/gpu/test_rows.py
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "${pytest[@]}" -m triton tests/store/gpu/test_index.py -x
  done
fi
run benchmark 240 python -m benchmarks.gpu --write
run interaction 60 python -m benchmarks.gpu.dot_interaction --write
run training 60 "${pytest[@]}" -m gpu tests/gpu/test_training.py
cat "$out/interaction.txt"
sed -n '/^| figure/,$p' "$out/benchmark.txt"
