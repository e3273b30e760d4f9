// TensorFlow's kernels for the fake GPU, enough to train a dense model.
// Operations without a kernel here run on the CPU, but a variable must be on
// the device of its updates.  Each kernel computes on the host in the order of
// its stream.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/gpu/fake/device/driver.h"

namespace tfring::fake_gpu {
namespace {

using tensorflow::DEVICE_GPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

void Launch(const OpKernelContext* context, std::function<void()> kernel) {
  UseContext(context->device()->tensorflow_accelerator_device_info()->gpu_id);
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(
        static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  cuLaunchHostFunc(kComputes, run,
                   new std::function<void()>(std::move(kernel)));
}

template <typename T>
T* Elements(const Tensor& tensor) {
  return static_cast<T*>(FakeCudaOnHost(tensor.data(), tensor.TotalBytes()));
}

// Returns nullptr if there is no memory; the context then has the error.
Tensor* NewOutput(OpKernelContext* context, const TensorShape& shape) {
  Tensor* output = nullptr;
  context->SetStatus(context->allocate_output(0, shape, &output));
  return output;
}

// ---- One element with another, broadcast as in NumPy ----

// For each element of `result`, the index of its operand in `shape`.  Empty if
// the shapes are equal, as for most tensors and for the largest.
std::vector<int64_t> Operands(const TensorShape& shape,
                              const TensorShape& result) {
  if (shape == result) return {};
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
    Launch(
        context,
        [x = Elements<float>(a), y = Elements<float>(b),
         of_x = Operands(a.shape(), shape), of_y = Operands(b.shape(), shape),
         z = Elements<float>(*output), count = output->NumElements()] {
          for (int64_t i = 0; i < count; ++i) {
            z[i] = Operation()(x[of_x.empty() ? i : of_x[i]],
                               y[of_y.empty() ? i : of_y[i]]);
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
    Launch(context, [x = Elements<float>(input), y = Elements<float>(*output),
                     count = input.NumElements()] {
      for (int64_t i = 0; i < count; ++i) y[i] = std::max(x[i], 0.0f);
    });
  }
};

// Into the memory of the first operand that nobody else holds, and beginning
// with that one, as TensorFlow's own does it.
class AddNOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<float*> operands;
    for (int i = 0; i < context->num_inputs(); ++i) {
      operands.push_back(Elements<float>(context->input(i)));
    }
    Tensor* output = nullptr;
    const TensorShape shape = context->input(0).shape();
    for (int i = 0; output == nullptr && i < context->num_inputs(); ++i) {
      if (context->forward_input_to_output_with_shape(i, 0, shape, &output)) {
        std::swap(operands[0], operands[i]);
      }
    }
    if (output == nullptr) output = NewOutput(context, shape);
    if (output == nullptr) return;
    Launch(context, [operands, z = Elements<float>(*output),
                     count = output->NumElements()] {
      for (int64_t i = 0; i < count; ++i) {
        float sum = operands[0][i];
        for (size_t j = 1; j < operands.size(); ++j) sum += operands[j][i];
        z[i] = sum;
      }
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
    Launch(context, [x = Elements<float>(input), y = Elements<float>(*output),
                     count = input.NumElements(), columns] {
      std::fill_n(y, columns, 0.0f);
      for (int64_t i = 0; i < count; ++i) y[i % columns] += x[i];
    });
  }
};

auto MatrixOf(const Tensor& tensor) {
  using Matrix =
      Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  return Eigen::Map<Matrix>(Elements<float>(tensor), tensor.dim_size(0),
                            tensor.dim_size(1));
}

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
    Launch(context,
           [transpose_a = transpose_a_, transpose_b = transpose_b_,
            x = MatrixOf(a), y = MatrixOf(b), z = MatrixOf(*output)]() mutable {
             if (transpose_a && transpose_b) {
               z.noalias() = x.transpose() * y.transpose();
             } else if (transpose_a) {
               z.noalias() = x.transpose() * y;
             } else if (transpose_b) {
               z.noalias() = x * y.transpose();
             } else {
               z.noalias() = x * y;
             }
           });
  }

 private:
  bool transpose_a_ = false, transpose_b_ = false;
};

// ---- Variables ----

tensorflow::core::RefCountPtr<tensorflow::Var> VariableOf(
    OpKernelContext* context) {
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  context->SetStatus(tensorflow::LookupResource(
      context, tensorflow::HandleFromInput(context, 0), &variable));
  return variable;
}

// Into new memory, as who has read the variable may still hold the old.
template <typename T, typename Operation>
class UpdateVariableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto variable = VariableOf(context);
    if (variable == nullptr) return;
    const Tensor& change = context->input(1);
    const tensorflow::mutex_lock lock(*variable->mu());
    const Tensor before = *variable->tensor();
    OP_REQUIRES(context, before.shape() == change.shape(),
                absl::InvalidArgumentError("shapes of the update differ"));
    Tensor after;
    OP_REQUIRES_OK(context, context->allocate_temp(before.dtype(),
                                                   before.shape(), &after));
    Launch(context, [x = Elements<T>(before), y = Elements<T>(change),
                     z = Elements<T>(after), count = before.NumElements()] {
      std::transform(x, x + count, y, z, Operation());
    });
    *variable->tensor() = after;
  }
};

// Updates only some rows, as for an embedding.  Indices must be valid rows.
template <typename T, typename Index, typename Operation>
class UpdateRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto variable = VariableOf(context);
    if (variable == nullptr) return;
    const Tensor& rows = context->input(1);
    const Tensor& changes = context->input(2);
    const tensorflow::mutex_lock lock(*variable->mu());
    const Tensor before = *variable->tensor();
    Tensor after;
    OP_REQUIRES_OK(context, context->allocate_temp(before.dtype(),
                                                   before.shape(), &after));
    Launch(context,
           [x = Elements<T>(before), count = before.NumElements(),
            row = Elements<Index>(rows), row_count = rows.NumElements(),
            width = before.NumElements() / before.dim_size(0),
            y = Elements<T>(changes), z = Elements<T>(after)] {
             std::copy_n(x, count, z);
             for (int64_t i = 0; i < row_count; ++i) {
               T* const to = z + row[i] * width;
               std::transform(to, to + width, y + i * width, to, Operation());
             }
           });
    *variable->tensor() = after;
  }
};

// Rows of any type.
template <typename Index>
class GatherRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto variable = VariableOf(context);
    if (variable == nullptr) return;
    const Tensor& rows = context->input(1);
    const tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    TensorShape shape = rows.shape();
    for (int dim = 1; dim < table.dims(); ++dim) {
      shape.AddDim(table.dim_size(dim));
    }
    const Tensor* const output = NewOutput(context, shape);
    if (output == nullptr) return;
    Launch(context, [x = Elements<char>(table), row = Elements<Index>(rows),
                     row_count = rows.NumElements(),
                     row_bytes = table.TotalBytes() / table.dim_size(0),
                     y = Elements<char>(*output)] {
      for (int64_t i = 0; i < row_count; ++i) {
        std::copy_n(x + row[i] * row_bytes, row_bytes, y + i * row_bytes);
      }
    });
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
REGISTER_KERNEL_BUILDER(ON_GPU("AddN", float), AddNOp);
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

#define ROWS_ON_GPU(NAME, INDEX) \
  Name(NAME)                     \
      .Device(DEVICE_GPU)        \
      .HostMemory("resource")    \
      .TypeConstraint<INDEX>("Tindices")
#define UPDATES_OF_ROWS_ON_GPU(INDEX)                                          \
  REGISTER_KERNEL_BUILDER(ROWS_ON_GPU("ResourceGather", INDEX),                \
                          GatherRowsOp<INDEX>);                                \
  REGISTER_KERNEL_BUILDER(                                                     \
      ROWS_ON_GPU("ResourceScatterAdd", INDEX).TypeConstraint<float>("dtype"), \
      UpdateRowsOp<float, INDEX, std::plus<float>>);                           \
  REGISTER_KERNEL_BUILDER(                                                     \
      ROWS_ON_GPU("ResourceScatterSub", INDEX).TypeConstraint<float>("dtype"), \
      UpdateRowsOp<float, INDEX, std::minus<float>>);
UPDATES_OF_ROWS_ON_GPU(int32_t)
UPDATES_OF_ROWS_ON_GPU(int64_t)

}  // namespace
}  // namespace tfring::fake_gpu
