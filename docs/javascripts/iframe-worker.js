// Pages opened from a folder (file://) may not start web workers, and the search runs in one.
// There, `Worker` runs the script in a hidden frame instead. The name of this file tells the
// theme's `offline` plugin not to fetch a script for the same purpose from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.scope = new Promise((resolve, reject) => {
        frame.onload = () => {
          const scope = frame.contentWindow;
          scope.postMessage = (data) => {
            const event = new MessageEvent("message", { data });
            this.dispatchEvent(event);
            if (this.onmessage) this.onmessage(event);
          };
          scope.importScripts = async (...urls) => {
            for (const each of urls) await load(scope, each);
          };
          load(scope, url).then(() => resolve(scope), reject);
        };
      });
      this.terminate = () => frame.remove();
      document.body.append(frame);
    }

    async postMessage(data) {
      const scope = await this.scope;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }
  };

  const load = (scope, url) =>
    new Promise((resolve, reject) => {
      const script = scope.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = resolve;
      script.onerror = reject;
      scope.document.body.append(script);
    });
}
