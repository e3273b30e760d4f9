# Builds what tests/gpu/schedule.py and schedule_step.py load, by the rules and
# for the TensorFlow of native.mk.
include tools/native.mk

SCHEDULE := $(patsubst %,$(OUT)/tests/gpu/%.so,compile_hlo lower_for_gpu)
.PHONY: gpu-schedule
gpu-schedule: $(SCHEDULE)
$(SCHEDULE): $(OUT)/tests/gpu/%.so: tests/gpu/%.cc
	@mkdir -p $(@D)
	@echo "$@"
	@$(CXX) -shared $(FLAGS) $(XLA_FLAGS) -o $@ $< -ldl -L$(TENSORFLOW) \
	  -l:libtensorflow_framework.so.2 -l:libtensorflow_cc.so.2
