// Calls cuLaunchKernel for Python, faster than ctypes does. Knows neither torch nor the CUDA headers: the driver
// library is opened at run time, so the module builds without a toolkit and loads without a driver.

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace py = pybind11;

namespace {

void* open_library(const std::string& name) {
#ifdef _WIN32
    return reinterpret_cast<void*>(LoadLibraryA(name.c_str()));
#else
    return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
#endif
}

template <typename Function>
Function symbol(void* library, const char* name) {
#ifdef _WIN32
    auto* found = reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
#else
    auto* found = dlsym(library, name);
#endif
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
}

struct Dim3 {
    unsigned x, y, z;
    explicit Dim3(const py::tuple& t) : x(t[0].cast<unsigned>()), y(t[1].cast<unsigned>()), z(t[2].cast<unsigned>()) {}
};

class Launcher {
public:
    explicit Launcher(const std::string& library) {
        void* driver = open_library(library);
        if (driver == nullptr) throw std::runtime_error("cannot open " + library);
        get_current_ = symbol<decltype(get_current_)>(driver, "cuCtxGetCurrent");
        push_ = symbol<decltype(push_)>(driver, "cuCtxPushCurrent_v2");
        pop_ = symbol<decltype(pop_)>(driver, "cuCtxPopCurrent_v2");
        launch_ = symbol<decltype(launch_)>(driver, "cuLaunchKernel");
    }

    // Returns the driver's CUresult.
    int launch(size_t context, size_t function, const py::tuple& grid, const py::tuple& block, unsigned shared_bytes,
               size_t stream, const py::bytes& params) const {
        const Dim3 g(grid), b(block);
        void* arguments[] = {PyBytes_AS_STRING(params.ptr())};  // one struct, which the driver copies
        py::gil_scoped_release unlocked;                        // a full queue makes the driver wait
        void* current = nullptr;
        if (int result = get_current_(&current)) return result;
        const bool foreign = current != reinterpret_cast<void*>(context);
        // Stream 0 means the current context's: it has to be the kernel's own.
        if (foreign) {
            if (int result = push_(reinterpret_cast<void*>(context))) return result;
        }
        int result = launch_(reinterpret_cast<void*>(function), g.x, g.y, g.z, b.x, b.y, b.z, shared_bytes,
                             reinterpret_cast<void*>(stream), arguments, nullptr);
        if (foreign) pop_(&current);
        return result;
    }

private:
    int (*get_current_)(void**);
    int (*push_)(void*);
    int (*pop_)(void**);
    int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};

}  // namespace

PYBIND11_MODULE(vc_attention_launcher, m) {
    m.def("interface", [] { return VC_INTERFACE; });  // INTERFACE of build/units.py when this was compiled
    py::class_<Launcher>(m, "Launcher").def(py::init<const std::string&>()).def("launch", &Launcher::launch);
}
