#!/usr/bin/env bash
# The ten checks for the first 20 minutes on an NVIDIA GPU. From the repository's root, in its environment with
# the extra nvidia, and pytest. Each is limited; none stops the next.
export ACCELBENCH_RESULTS=${ACCELBENCH_RESULTS:-$PWD/results-gpu}; mkdir -p "$ACCELBENCH_RESULTS"
check() { local s=$1; shift; echo "=== $*"; timeout "$s" "$@"; echo "--- rc=$?"; }
nvidia-smi --query-gpu=name,uuid,driver_version,mig.mode.current,clocks.max.sm,power.limit,ecc.mode.current --format=csv
# 1 devices, names, NVML, why something is missing; peaks known?
check 120 accelbench devices
check 120 accelbench doctor
# 2 the timer against a plain event loop and do_bench; expect within 2 %
check 180 python -m studies.gpu_gemm 3
# 3 event queue, launch-bound, cold caches
check 180 python -m pytest -q -m real tests/test_gpu.py
# 4 precision: float32, tf32, bf16, float8 of one product must lie about 1 : 7-8 : 15 : 25-30 (H100), and none may raise
check 150 accelbench run -w gemm -b torch -d cuda:0 -p m=n=k=8192 --dtype float32,tf32,bfloat16,float16,float8 --quick --rounds 2
# 5 every torch mode, forward and training; watch peak_device of cudagraph against eager's, and cudagraph skips
check 240 accelbench run -w gpt2_prefill,gpt2_train,convnet_train -b torch -d cuda:0 --mode eager,compile,reduce-overhead,cudagraph --dtype amp-bf16,bfloat16 --quick --rounds 1
# 6 optimizers under a graph, accumulation and two losses under cudagraph trees
check 200 accelbench run -w convnet_train,dcgan_train -b torch -d cuda:0 --mode reduce-overhead,cudagraph -p accumulate=1,2 --quick --rounds 1
check 120 accelbench run -w update -p optimizer=sgd,momentum,adam,adamw,adagrad,adadelta,rmsprop -b torch -d cuda:0 --mode eager,cudagraph --quick --rounds 1
# 7 attention: torch flash, JAX cuDNN; then JAX's network against torch's (is it fused?)
check 200 accelbench run -w attention,llama_train -b torch,jax -d accelerator --dtype bfloat16,amp-bf16 -p length=2048 --quick --rounds 1
# 8 launch-bound false alarms: scaled training with SGD, pageable copies
check 150 accelbench run -w resnet50_train,host_to_device -b torch -d cuda:0 --dtype amp-fp16,float32 --quick --rounds 1
# 9 ONNX Runtime and TensorRT start, queue and wait; telemetry of tensorrt:0
check 240 accelbench run -w resnet50_infer -b onnxruntime -d accelerator --dtype float32,tf32,float16 -p batch=64 --quick --rounds 1
# 10 two GPUs: NCCL, data parallel eager, compiled and as a graph (a hang shows here)
[ "$(nvidia-smi -L | grep -c '^GPU')" -gt 1 ] && check 240 accelbench run -w all_reduce,convnet_train -b torch -d cuda:0 --world 2 --mode eager,compile,cudagraph --timeout 60 --quick --rounds 1
