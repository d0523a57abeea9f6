plugins {
    id("com.android.library")
    id("org.jetbrains.kotlin.android")
}

val executorchSource = providers.gradleProperty("executorch.source").orNull
    ?: throw GradleException("Set executorch.source in gradle.properties to the source of ExecuTorch 1.5.1; see README.md.")

android {
    namespace = "dev.hybridge"
    compileSdk = 35
    ndkVersion = "28.2.13676358" // links for pages of 16 KB, which Android 15 has

    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
        ndk {
            abiFilters += listOf("arm64-v8a")
        }
        externalNativeBuild {
            cmake {
                targets += "hybridge_jni"
                arguments += listOf(
                    "-DANDROID_STL=c++_static", // nothing of C++ crosses the library's border
                    "-DEXECUTORCH_SOURCE=$executorchSource",
                )
            }
        }
    }

    buildTypes {
        // A debug build of the kernels is too slow to try anything with.
        debug { externalNativeBuild { cmake { arguments += "-DCMAKE_BUILD_TYPE=RelWithDebInfo" } } }
        release { externalNativeBuild { cmake { arguments += "-DCMAKE_BUILD_TYPE=Release" } } }
    }

    externalNativeBuild {
        cmake {
            path = file("src/main/cpp/CMakeLists.txt")
            version = "3.31.6" // 3.24 or later, for whole archives
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

kotlin {
    jvmToolchain(17)
    explicitApi()
}

dependencies {
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core:1.10.2") // Flows.kt alone; delete both where an app has no coroutines
}
