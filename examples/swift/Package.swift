// swift-tools-version:5.9
import PackageDescription

// `executorch` beside this file is a link to the folder of ExecuTorch's Python package, which has the headers (README.md). What
// is linked is on Apple's platforms ExecuTorch's own Swift package of the same version, and elsewhere that folder's libraries.
let executorch = Context.packageDirectory + "/executorch"
let apple: [Platform] = [.iOS, .macOS]

#if os(Linux)
let packages: [Package.Dependency] = []
let frameworks: [Target.Dependency] = []
#else
let packages: [Package.Dependency] = [.package(url: "https://github.com/pytorch/executorch.git", branch: "swiftpm-1.5.1")]
let frameworks: [Target.Dependency] = ["executorch", "kernels_optimized", "backend_xnnpack"].map {
  .product(name: $0, package: "executorch")
}
#endif

// Folders of which every file is compiled: those of runtime/native/CMakeLists.txt, and the kernels for one processor.
let core = ["c_api", "engine", "pte", "text"].map { "native/\($0)" }
let thirdParty = ["pcre2", "utf8proc/utf8proc.c", "yyjson"].map { "native/third_party/\($0)" }

let package = Package(
  name: "Hybridge",
  platforms: [.iOS(.v17), .macOS(.v12)],
  products: [.library(name: "Hybridge", targets: ["Hybridge"])],
  dependencies: packages,
  targets: [
    // hybridge.h and what is behind it, compiled with the app.
    .target(
      name: "CHybridge",
      dependencies: frameworks,
      sources: core + thirdParty + ["kernels"],
      cSettings: [
        .headerSearchPath("native/third_party/pcre2"), .define("HAVE_CONFIG_H"), .define("PCRE2_CODE_UNIT_WIDTH", to: "8"),
      ],
      cxxSettings: [
        .headerSearchPath("native"),
        .headerSearchPath("kernels"),
        .headerSearchPath("../../executorch/include"),
        .headerSearchPath("../../executorch/include/executorch/runtime/core/portable_type/c10"),
        // As the libraries were compiled that it is linked to: classes have another layout without.
        .define("C10_USING_CUSTOM_GENERATED_MACROS"),
        .define("ET_USE_THREADPOOL"),
        .define("ET_EVENT_TRACER_ENABLED", .when(platforms: [.linux])),
        // Kernels without optimization are too slow to try anything with.
        .unsafeFlags(["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]),
        // iPhone 11 and later: without dot products the kernels are right, but several times slower. Macs have them anyway.
        .unsafeFlags(["-mcpu=apple-a13"], .when(platforms: [.iOS])),
        .unsafeFlags(["-march=native"], .when(platforms: [.linux])),
      ],
      linkerSettings: [
        // Operators and backends register themselves when they are loaded: nothing names a symbol of theirs.
        .unsafeFlags(["-Xlinker", "-all_load"], .when(platforms: apple)),
        .unsafeFlags(["-Xlinker", "--no-as-needed", "-L", executorch + "/lib"], .when(platforms: [.linux])),
        .unsafeFlags(["-Xlinker", "-rpath", "-Xlinker", executorch + "/lib"], .when(platforms: [.linux])),
        .linkedLibrary("executorch", .when(platforms: [.linux])),
        .linkedLibrary("executorch_threadpool", .when(platforms: [.linux])),
        .linkedLibrary("executorch_kernels_optimized", .when(platforms: [.linux])),
        .linkedLibrary("executorch_backend_xnnpack", .when(platforms: [.linux])),
      ]),
    .target(name: "Hybridge", dependencies: ["CHybridge"]),
    .executableTarget(name: "talk", dependencies: ["Hybridge"]),
    .testTarget(name: "HybridgeTests", dependencies: ["Hybridge"]),
  ],
  cxxLanguageStandard: .cxx20
)
