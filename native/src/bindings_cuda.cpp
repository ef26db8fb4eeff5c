#include "aegaeon/cuda/device.hpp"
#include "bindings.hpp"

namespace {

using aegaeon::cuda::Device;

std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

void make_device(Device* device, int ordinal, const std::string& driver, const nb::bytes& kernels) {
  const std::string image(kernels.c_str(), kernels.size());
  const nb::gil_scoped_release release;
  new (device) Device(ordinal, driver, image);
}

}  // namespace

void bind_cuda(nb::module_& m) {
  nb::class_<Device>(m, "CudaDevice", nb::is_final())
      .def("__init__", &make_device, "ordinal"_a, "driver"_a = "libcuda.so.1", "kernels"_a = nb::bytes("", 0))
      .def_prop_ro("ordinal", &Device::ordinal)
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("capability", &Device::capability)
      .def_prop_ro("granularity", &Device::granularity)
      .def_prop_ro("total_bytes", &Device::total_bytes)
      .def_prop_ro("free_bytes", &Device::free_bytes)
      .def(
          "lock_pages",
          [](Device& device, std::uintptr_t address, std::size_t nbytes, bool read_only) {
            device.lock_pages(pointer(address), nbytes, read_only);
          },
          "address"_a, "nbytes"_a, "read_only"_a = false, GilFree())
      .def(
          "unlock_pages", [](Device& device, std::uintptr_t address) { device.unlock_pages(pointer(address)); },
          "address"_a, GilFree());
}
