#include "aegaeon/cuda/device.hpp"
#include "bindings.hpp"

namespace {

using aegaeon::cuda::Device;

std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

void bind_cuda(nb::module_& m) {
  m.def("cuda_uuid", &aegaeon::cuda::uuid_of, "ordinal"_a, "driver"_a = "libcuda.so.1", GilFree());
  nb::class_<Device>(m, "CudaDevice", nb::is_final())
      .def(nb::init<int, const std::string&>(), "ordinal"_a, "driver"_a = "libcuda.so.1", GilFree())
      .def_prop_ro("ordinal", &Device::ordinal)
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("pci_bus_id", &Device::pci_bus_id)
      .def_prop_ro("locks_read_only", &Device::locks_read_only)
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
