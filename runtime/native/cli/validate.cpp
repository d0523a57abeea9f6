// hybridge-cli validate: checks an artifact's hashes, and replays its golden steps on this device.

#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "text_model.h"

namespace hybridge::cli {

namespace {

std::string share(double error) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2g of the largest logit", error);
  return text;
}

std::string bits(const hybridge_validation& found) {
  const std::string here = found.instruction_set, there = found.exported_on;
  if (found.same_bits != 0) return "bit-identical to those where it was exported (" + there + ")";
  if (here != there) return "others than where it was exported: " + here + " here, " + there + " there";
  return "others than where it was exported, by another version of hybridge";
}

}  // namespace

void validate(Words words) {
  std::string artifact;
  Arguments arguments("validate", "Check an artifact's hashes, and replay the steps that its export stored.");
  arguments.word("ARTIFACT", "An exported artifact: the folder that 'hybridge export' wrote.", artifact);
  if (!arguments.read(words)) return;
  const ArtifactFolder folder(artifact);
  folder.check_hashes();
  if (!folder.has("golden.json")) {
    write_out(
        "The files are those of the manifest. There are no golden steps: the weights were checked by hash and reader.\n"
    );
    return;
  }
  const ModelHandle model = open_model(folder);
  hybridge_validation found{};
  check(hybridge_validate(model, folder.file("golden.json").c_str(), &found), folder.path());
  print_rows(
      stdout, {{"golden steps", std::to_string(found.steps) + ", all right"},
               {"worst error", share(found.worst) + ", " + share(found.tolerance) + " allowed"},
               {"bits", bits(found)}}
  );
}

}  // namespace hybridge::cli
