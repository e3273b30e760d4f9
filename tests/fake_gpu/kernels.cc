// As many of TensorFlow's kernels for its GPUs as a dense model needs to be
// trained on the fake one: what has no kernel here, TensorFlow puts on the CPU,
// but a variable is where its updates are.  Each computes on the host when the
// stream has come so far.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/fake_gpu/driver.h"

namespace tfring::fake_gpu {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

void Launch(std::function<void()> kernel) {
  UseContext();
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(
        static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  cuLaunchHostFunc(kStream, run, new std::function<void()>(std::move(kernel)));
}

template <typename T>
T* Elements(const Tensor& tensor) {
  return static_cast<T*>(FakeCudaOnHost(tensor.data()));
}

// nullptr if there is no memory, which the context then knows.
Tensor* NewOutput(OpKernelContext* context, const TensorShape& shape) {
  Tensor* output = nullptr;
  context->SetStatus(context->allocate_output(0, shape, &output));
  return output;
}

// ---- One element with another, broadcast as in NumPy ----

// For each element of `result`, the index of its operand in `shape`.
std::vector<int64_t> Operands(const TensorShape& shape,
                              const TensorShape& result) {
  std::vector<int64_t> indices(result.num_elements());
  for (int64_t i = 0; i < result.num_elements(); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (int from_end = 1; from_end <= shape.dims(); ++from_end) {
      const int64_t size = result.dim_size(result.dims() - from_end);
      const int64_t own = shape.dim_size(shape.dims() - from_end);
      if (own != 1) index += rest % size * stride;
      rest /= size;
      stride *= own;
    }
    indices[i] = index;
  }
  return indices;
}

template <typename Operation>
class BinaryOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& a = context->input(0);
    const Tensor& b = context->input(1);
    TensorShape shape = a.dims() >= b.dims() ? a.shape() : b.shape();
    const TensorShape& other = a.dims() >= b.dims() ? b.shape() : a.shape();
    for (int from_end = 1; from_end <= other.dims(); ++from_end) {
      const int dim = shape.dims() - from_end;
      const int64_t size = other.dim_size(other.dims() - from_end);
      OP_REQUIRES(
          context,
          size == shape.dim_size(dim) || size == 1 || shape.dim_size(dim) == 1,
          absl::InvalidArgumentError("Incompatible shapes"));
      if (shape.dim_size(dim) == 1) shape.set_dim(dim, size);
    }
    const Tensor* const output = NewOutput(context, shape);
    if (output == nullptr) return;
    Launch([x = Elements<float>(a), y = Elements<float>(b),
            of_x = Operands(a.shape(), shape),
            of_y = Operands(b.shape(), shape), z = Elements<float>(*output)] {
      for (size_t i = 0; i < of_x.size(); ++i) {
        z[i] = Operation()(x[of_x[i]], y[of_y[i]]);
      }
    });
  }
};

struct Rectified {
  float operator()(float gradient, float feature) const {
    return feature > 0 ? gradient : 0;
  }
};

class ReluOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Tensor* const output = NewOutput(context, input.shape());
    if (output == nullptr) return;
    Launch([x = Elements<float>(input), y = Elements<float>(*output),
            count = input.NumElements()] {
      for (int64_t i = 0; i < count; ++i) y[i] = std::max(x[i], 0.0f);
    });
  }
};

class BiasAddGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t columns = input.dim_size(input.dims() - 1);
    const Tensor* const output = NewOutput(context, TensorShape({columns}));
    if (output == nullptr) return;
    Launch([x = Elements<float>(input), y = Elements<float>(*output),
            count = input.NumElements(), columns] {
      std::fill_n(y, columns, 0.0f);
      for (int64_t i = 0; i < count; ++i) y[i % columns] += x[i];
    });
  }
};

class MatMulOp : public OpKernel {
 public:
  explicit MatMulOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("transpose_a", &transpose_a_));
    OP_REQUIRES_OK(context, context->GetAttr("transpose_b", &transpose_b_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& a = context->input(0);
    const Tensor& b = context->input(1);
    const int64_t rows = a.dim_size(transpose_a_ ? 1 : 0);
    const int64_t inner = a.dim_size(transpose_a_ ? 0 : 1);
    const int64_t columns = b.dim_size(transpose_b_ ? 0 : 1);
    OP_REQUIRES(context, inner == b.dim_size(transpose_b_ ? 1 : 0),
                absl::InvalidArgumentError("Matrix size-incompatible"));
    const Tensor* const output =
        NewOutput(context, TensorShape({rows, columns}));
    if (output == nullptr) return;
    const int64_t a_row = transpose_a_ ? 1 : inner;
    const int64_t a_inner = transpose_a_ ? rows : 1;
    const int64_t b_inner = transpose_b_ ? 1 : columns;
    const int64_t b_column = transpose_b_ ? inner : 1;
    Launch([=, x = Elements<float>(a), y = Elements<float>(b),
            z = Elements<float>(*output)] {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          float sum = 0;
          for (int64_t i = 0; i < inner; ++i) {
            sum += x[row * a_row + i * a_inner] *
                   y[i * b_inner + column * b_column];
          }
          z[row * columns + column] = sum;
        }
      }
    });
  }

 private:
  bool transpose_a_ = false, transpose_b_ = false;
};

// ---- Variables ----

// Into new memory, as who has read the variable may still hold the old.
template <typename T, typename Operation>
class UpdateVariableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(
        context,
        tensorflow::LookupResource(
            context, tensorflow::HandleFromInput(context, 0), &variable));
    const Tensor& change = context->input(1);
    const tensorflow::mutex_lock lock(*variable->mu());
    const Tensor before = *variable->tensor();
    OP_REQUIRES(context, before.shape() == change.shape(),
                absl::InvalidArgumentError("shapes of the update differ"));
    Tensor after;
    OP_REQUIRES_OK(context, context->allocate_temp(before.dtype(),
                                                   before.shape(), &after));
    Launch([x = Elements<T>(before), y = Elements<T>(change),
            z = Elements<T>(after), count = before.NumElements()] {
      std::transform(x, x + count, y, z, Operation());
    });
    *variable->tensor() = after;
  }
};

#define ON_GPU(NAME, TYPE) \
  Name(NAME).Device(DEVICE_GPU).TypeConstraint<TYPE>("T")
REGISTER_KERNEL_BUILDER(ON_GPU("AddV2", float), BinaryOp<std::plus<float>>);
REGISTER_KERNEL_BUILDER(ON_GPU("BiasAdd", float), BinaryOp<std::plus<float>>);
REGISTER_KERNEL_BUILDER(ON_GPU("Sub", float), BinaryOp<std::minus<float>>);
REGISTER_KERNEL_BUILDER(ON_GPU("Mul", float), BinaryOp<std::multiplies<float>>);
REGISTER_KERNEL_BUILDER(ON_GPU("ReluGrad", float), BinaryOp<Rectified>);
REGISTER_KERNEL_BUILDER(ON_GPU("Relu", float), ReluOp);
REGISTER_KERNEL_BUILDER(ON_GPU("BiasAddGrad", float), BiasAddGradOp);
REGISTER_KERNEL_BUILDER(ON_GPU("MatMul", float), MatMulOp);

#define UPDATES_ON_GPU(TYPE)                                        \
  REGISTER_KERNEL_BUILDER(Name("AssignAddVariableOp")               \
                              .Device(DEVICE_GPU)                   \
                              .HostMemory("resource")               \
                              .TypeConstraint<TYPE>("dtype"),       \
                          UpdateVariableOp<TYPE, std::plus<TYPE>>); \
  REGISTER_KERNEL_BUILDER(Name("AssignSubVariableOp")               \
                              .Device(DEVICE_GPU)                   \
                              .HostMemory("resource")               \
                              .TypeConstraint<TYPE>("dtype"),       \
                          UpdateVariableOp<TYPE, std::minus<TYPE>>);
UPDATES_ON_GPU(float)
UPDATES_ON_GPU(double)
UPDATES_ON_GPU(Eigen::half)
UPDATES_ON_GPU(tensorflow::bfloat16)
UPDATES_ON_GPU(int64_t)

}  // namespace
}  // namespace tfring::fake_gpu
